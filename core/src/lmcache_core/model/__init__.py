"""Pure values: keys, layouts, bitmaps, results, errors.  Imports nothing of this project."""
