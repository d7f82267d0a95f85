"""The only code that speaks to the API server; it knows nothing of quitting or admission."""
