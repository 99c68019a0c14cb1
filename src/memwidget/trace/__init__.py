"""One device of a Recording, reduced to block lifetimes and curves, with the questions one can ask. numpy only."""
