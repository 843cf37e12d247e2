"""Invented Spanish reports, with their sentences judged by hand.

``report`` as a hospital writes it; ``expected`` are the (section, sentence) pairs of findings and
impression.
"""

REPORTS = [
    (
        "RADIOGRAFÍA DE TÓRAX PA Y LATERAL\n\nMOTIVO DE LA EXPLORACIÓN: Disnea. Tos.\n\n"
        "HALLAZGOS:\nSilueta cardíaca de tamaño normal. Nódulo de 1,5 cm. en el LSD, de aprox."
        " 3 meses de evolución. No se observa derrame pleural.\n\n"
        "IMPRESIÓN DIAGNÓSTICA:\n1. Nódulo pulmonar en LSD.\n2. Sin signos de neumonía.",
        [
            ("findings", "Silueta cardíaca de tamaño normal."),
            (
                "findings",
                "Nódulo de 1,5 cm. en el LSD, de aprox. 3 meses de evolución.",
            ),
            ("findings", "No se observa derrame pleural."),
            ("impression", "Nódulo pulmonar en LSD."),
            ("impression", "Sin signos de neumonía."),
        ],
    ),
    (
        "Hallazgos: Se compara con Rx. previa del 12.03.2021. Infiltrado en base izq. con"
        " broncograma aéreo. Dr. Pérez informado.Resto sin cambios.\n"
        "Conclusión: Neumonía en LII.\nFirmado por: Dra. Gómez",
        [
            ("findings", "Se compara con Rx. previa del 12.03.2021."),
            ("findings", "Infiltrado en base izq. con broncograma aéreo."),
            ("findings", "Dr. Pérez informado."),
            ("findings", "Resto sin cambios."),
            ("impression", "Neumonía en LII."),
        ],
    ),
    (
        "cambi pulmonar cronic sever . sign fibrosis bibasal . sin derram pleural .",
        [
            ("note", "cambi pulmonar cronic sever."),
            ("note", "sign fibrosis bibasal."),
            ("note", "sin derram pleural."),
        ],
    ),
    (
        "HALLAZGOS\nPULMONES: Sin consolidaciones.\nCORAZÓN: Índice cardiotorácico de 0,52.\n"
        "CONCLUSION\nCardiomegalia leve",
        [
            ("findings", "PULMONES: Sin consolidaciones."),
            ("findings", "CORAZÓN: Índice cardiotorácico de 0,52."),
            ("impression", "Cardiomegalia leve"),
        ],
    ),
]
