"""Parts of the hostile bench: an engine that answers badly, and the digest of the code that was measured."""
