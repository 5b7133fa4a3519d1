"""The dispatch environment: which waiting phase of a group gets its nodes next."""
