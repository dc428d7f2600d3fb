"""What the server measures of itself: a catalogue of all readings, and where each is read."""
