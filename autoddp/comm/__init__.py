"""What ranks are to each other, and what they say to each other; knows no file."""
