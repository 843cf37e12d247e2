"""What a model found, as objects that a PACS or a clinical system takes: DICOM, FHIR, JSON."""
