"""`laconic run`: torch's elastic launcher, taught to say who was lost and to leave nothing behind."""
