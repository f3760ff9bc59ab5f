"""Data sets for networks: records drawn by index, each collated by itself; labelled items; privacy units with several rows."""
