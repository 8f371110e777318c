"""Predictions of what more devices would bring, from the timeline of one device's step."""
