"""What a kernel is, which combinations can exist, and which ones we want."""
