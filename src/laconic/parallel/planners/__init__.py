"""Planners that cut a model into stages and place the stages on devices."""
