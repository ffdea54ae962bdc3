"""Tables of losses on a ladder of models: what is run, how one run is trained, and how runs share a device."""
