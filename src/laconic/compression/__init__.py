"""Compressors: from a tensor to a payload and back, with their memory."""
