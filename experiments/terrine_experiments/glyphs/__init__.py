"""Labelled pictures of characters, drawn with the fonts of one's own machine."""
