"""Slow implementations of everything a recipe can say, from the formulas of the papers: NumPy, float64, plain loops.

They share nothing with the library but the words of an authored recipe and the names of the parameters.
"""
