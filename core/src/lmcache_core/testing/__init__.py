"""For plugin authors' tests."""
