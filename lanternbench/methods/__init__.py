"""Methods: four kinds of components, and the presets that name combinations of them."""
