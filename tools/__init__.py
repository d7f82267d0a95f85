"""What builds what ships: charm, image, program, wheel, bills of materials, and a release.

Tests and their lab import from here; nothing here imports from them.
"""
