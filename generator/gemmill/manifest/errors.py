"""Why a manifest or its extension cannot be used."""


class ManifestError(Exception):
    """The text names the file, what was found, what was expected and what to do."""
