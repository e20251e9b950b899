"""Rewards: answer checking and shaping."""
