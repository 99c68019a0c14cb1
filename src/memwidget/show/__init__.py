"""Pictures of a trace: the widget, the page, the static picture, the text.

Imports nothing by itself, so that a summary in a terminal loads no widget library.
"""
