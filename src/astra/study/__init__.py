"""Many plans for one question: what a single change would bring, and how answers move with a number."""
