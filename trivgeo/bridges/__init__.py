"""Bridges to other libraries, each a module of the name of its library, thin, in that library's own idiom.

Importing a bridge needs no other library; its classes say what is missing when they are used.
"""
