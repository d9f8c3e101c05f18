"""What a predicted time rests on: published runs that resemble a plan, and how far off such predictions were."""
