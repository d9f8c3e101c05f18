"""Dollars: prices, bills, goals and the front of time against money."""
