"""Radiographs from a DICOMweb server (DICOM PS3.18): search by QIDO-RS, retrieve by WADO-RS."""
