"""What workers say: compressors, from tensor to payload and back."""
