"""Other groups' image-text models of chest radiographs, under this project's protocols."""
