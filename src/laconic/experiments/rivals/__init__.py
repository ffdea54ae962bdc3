"""Other libraries' methods on the user's unchanged script, so that a comparison can put them beside ours."""
