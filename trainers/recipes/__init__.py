"""Recipes that made the shipped weights: teachers, lookahead labels and imitation. Nothing else imports them."""
