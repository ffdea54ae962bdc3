"""Messages between workers and server-side actors over ZeroMQ: each write takes effect exactly once and in order,
whatever fails."""
