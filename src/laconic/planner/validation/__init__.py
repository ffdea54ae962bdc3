"""What the models' accuracy is, recomputed from measurements: a file for each section of `laconic validate`."""
