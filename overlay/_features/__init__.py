"""Features: folders of patches and added modules, read, checked and digested."""
