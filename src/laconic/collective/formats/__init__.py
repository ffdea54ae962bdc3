"""Programs as text: our own JSON, what people read, MSCCL's XML and MSCCL++'s plans."""
