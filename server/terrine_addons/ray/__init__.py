"""Teachers that train and vote on a Ray cluster."""

from terrine_models.addons import Addon

ADDON = Addon(
    settings="terrine_addons.ray.settings:RaySettings",
    trainers={"ray": "terrine_addons.ray.training:on_cluster"},
    local_voters={"ray": "terrine_addons.ray.voters:ray_voters"},
    start="terrine_addons.ray.voters:check_settings",
)
