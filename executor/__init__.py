"""A sandboxed script-execution backend for Agent Skills."""
