"""Token counting and its calibration by reported usage."""
