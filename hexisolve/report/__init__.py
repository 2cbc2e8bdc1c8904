"""Pictures of plans and timelines for people."""
