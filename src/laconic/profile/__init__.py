"""What engines and planners start from: layer times, tensor lists, link and codec measurements, as plain values."""
