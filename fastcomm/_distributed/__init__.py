"""What belongs to process groups: how they are made, their memory, and which path a call takes."""
