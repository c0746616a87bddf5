"""Protects, versions and reveals immutable ConfigMaps and Secrets."""
