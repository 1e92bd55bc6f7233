"""The one exception that means "the user gave us something we cannot use"."""


class InputError(ValueError):
    """Bad input: its text is one line that says what, where, and what would be valid.

    The command line prints it as it is and exits with code 2. Nothing else is
    shown to a user, so the text must stand on its own.
    """
