"""What to rent: offers in every count, mixes of two, and what a goal makes of them."""
