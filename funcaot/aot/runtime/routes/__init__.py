"""Other ways of a call: ``compiled`` sends calls here whose sizes it can't leave open itself."""
