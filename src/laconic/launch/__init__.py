"""`laconic run`: a launcher, built on torch's elastic one, that reports lost workers and leaves no process behind."""
