"""What workers send: compressors, which turn tensors into payloads and back."""
