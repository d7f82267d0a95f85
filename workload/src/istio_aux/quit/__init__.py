"""Watch pods and make the proxies of those that are finished exit."""
