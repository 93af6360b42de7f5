"""The recording that a capture makes and that each backward continues."""
