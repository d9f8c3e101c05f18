"""What makes a strategy legal: the table, the language it is written in, and restrictions of users."""
