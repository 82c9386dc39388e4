"""Published datasets of stereo pairs."""

from collections.abc import Sequence

from automl.data.download import PublishedDataset, Remote

FREIBURG = "https://lmb.informatik.uni-freiburg.de/data/SceneFlowDatasets_CVPR16/Release_april16/data"
_SCENE_FLOW = {
    "flyingthings3d": ("FlyingThings3D", 39_473_469_440, 93_213_362_434),
    "monkaa": ("Monkaa", 9_672_867_840, 29_940_902_883),
    "driving": ("Driving", 6_681_896_960, 9_561_161_211),
}

DATASETS: Sequence[PublishedDataset] = (
    *(
        PublishedDataset(
            name=f"sceneflow-{name}",
            about=f"Scene Flow, {folder}: clean frames and disparities",
            files=[
                Remote(address=f"{FREIBURG}/{folder}/raw_data/{name}__frames_cleanpass.tar", size=frames),
                Remote(
                    address=f"{FREIBURG}/{folder}/derived_data/{name}__disparity.tar.bz2",
                    size=disparities,
                ),
            ],
            key=f"sceneflow-{name}",
            space="sceneflow",
            license="research only",
            source="lmb.informatik.uni-freiburg.de",
        )
        for name, (folder, frames, disparities) in _SCENE_FLOW.items()
    ),
)
