"""What the server measures of itself: a catalogue of all samples, and where each is read."""
