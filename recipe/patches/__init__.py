"""Everything that changes foreign code at run time, with the reason beside each change."""
